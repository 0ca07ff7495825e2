"""Keeps every agent and every score of a tournament, ranks candidates, and generates agents.

__main__.py           creates and connects the components, and runs the service
config.py             configuration
service.py            translates between the gRPC contract and the modules below
updater.py            reads submitted checkpoints, judges them and records the result
generator.py          generates agents, each once; generation.py: its transactions
snapshots.py          records snapshots for learning curves
queries.py            answers queries on the records
garbage.py            deletes checkpoint files that are no longer needed
storage_quotas.py     finds what exceeds the quotas of tournaments, for the garbage collection
decision_replay.py    makes every recorded decision again and compares the results
recorded_wording.py   translates reasons that earlier versions recorded
score_statistics.py   statistics of algorithms and hyperparameters
cached_statistics.py  caches them for generator plugins
score_histories.py    keeps the latest scores of each tournament in memory
trial_cache.py        keeps the folded log of each tournament in memory
submission_watch.py   wakes the callers that wait for submissions
single_flight.py      shares one run of a piece of work among concurrent callers
seeding.py            derives seeds and random streams
ranking/              ranks candidates and selects the champion (pure)
evolution/            decides what the next agent is: the strategies (pure)
plugins/              calls generator and updater plugins
checkpoints/          reads submitted checkpoints and checks what they state
store_access/         gives pods access to the checkpoint store
delivery/             delivers checkpoints to programs without access to the store
rebuilding/           rebuilds a database that was lost without a backup
store/                the database
"""
