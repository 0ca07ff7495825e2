"""Trains on each new version of a dataset and keeps the best champion (`podrace continuous`).

podrace/cli/continuous/
  command.py       the commands start, status and stop
  controller.py    watches the data, runs tournaments, compares their champions
  decisions.py     decides when to read the data, which versions are new, and which agent is champion (pure)
  spec.py          the specification of each version's tournament (pure)
  dataset.py       copies the data as versions
  source.py        where data comes from; bucket.py: data on an S3 server
  scores.py        scores challenger and champion on the same seeds
  journal.py       the recorded state; tables.py shows it
  champion_files.py  the champion in a folder that a policy server follows
  process.py       one background process per name
"""
