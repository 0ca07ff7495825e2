"""`podrace continuous`: trains on each new version of a dataset, and keeps the better champion.

podrace/cli/continuous/
  command.py       what a person types: start, status, stop
  run.py           watches, begins tournaments, compares their best with the champion
  decisions.py     what is a new version, which one comes next, who is champion (PURE)
  spec.py          the specification of each version's tournament (PURE)
  dataset.py       data of this machine, pinned as versions; bucket.py: data on a server that speaks S3
  scores.py        challenger and champion on the same seeds
  state.py         the diary; tables.py: what people read of it
  process.py       one process for each name: begun in the background, found again, stopped
"""
