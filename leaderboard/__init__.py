"""Keeps every agent and every score of a tournament, ranks candidates, and generates agents.

__main__.py           creates and connects the components, and runs the service
config.py             configuration
service.py            translates between the gRPC contract and the modules below
updater.py            reads submitted checkpoints, judges them and records the result
generator.py          generates agents, each once
snapshots.py          records snapshots for learning curves
queries.py            answers queries on the records
garbage.py            deletes checkpoint files that are no longer needed
decision_replay.py    makes every recorded decision again and compares the results
recorded_wording.py   translates reasons that earlier versions recorded
score_statistics.py   statistics of algorithms and hyperparameters
cached_statistics.py  caches them for generator plugins
submission_watch.py   wakes the callers that wait for submissions
single_flight.py      shares one run of a piece of work among concurrent callers
seeding.py, text.py   seeds; cleaning of text
ranking/              ranks candidates and selects the champion (pure)
evolution/            decides what the next agent is: the strategies (pure)
plugins/              calls generator and updater plugins
store/                the database
"""
