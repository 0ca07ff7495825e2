"""The orchestrator: stores tournaments, leases agents to pods, and decides how many pods each tournament gets.

__main__.py            creates and connects the components, and runs the service
config.py              configuration
service.py             translates between the gRPC contract and the packages below
discovery.py           answers what this server is, and what a specification may name
messages.py            builds the messages of the contract from records and from the state in memory
validation.py          checks a specification before its tournament is created
inspection_queue.py    limits how many specifications are tried out at a time, for each owner
leaderboard_client.py  calls the leaderboard
archiving.py           sends the records of a tournament to the leaderboard before it is deleted
backup_store.py        gives the orchestrator a store for its backups
decisions/             decides: fair shares, pool sizes, work of pods, quotas, objectives (pure)
state/                 the database, its cache, and the state that is kept in memory only
tournaments/           the lifecycle of tournaments: creation, changes, completion, champion selection
assignments/           assignments: pods acquire, renew and complete them under leases
pool/                  the pods of all tournaments: the reconcile loop, pod records, metrics
launchers/             starts and stops pods: processes, containers, Jobs; external pods
rebuilding/            rebuilds a database that was lost without a backup
"""
