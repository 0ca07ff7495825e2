"""Defines the tables of the leaderboard's database. leaderboard.store.records gives the rows their meaning."""

from podrace.database import Format

SCHEMA = """
CREATE TABLE tournaments (tournament_id TEXT PRIMARY KEY, spec BLOB NOT NULL) STRICT;
CREATE TABLE agents (
    generation INTEGER PRIMARY KEY, agent_id TEXT NOT NULL UNIQUE, tournament_id TEXT NOT NULL, number INTEGER NOT NULL,
    depth INTEGER NOT NULL, after_sequence INTEGER NOT NULL, parent TEXT, ended INTEGER, failed INTEGER,
    create_time REAL NOT NULL, agent BLOB NOT NULL, UNIQUE (tournament_id, number)) STRICT;
CREATE INDEX agents_unfinished ON agents (tournament_id, parent, number, agent_id) WHERE ended IS NULL;
CREATE INDEX agents_failed ON agents (tournament_id, agent_id) WHERE failed IS NOT NULL;
CREATE TABLE proposals (agent_id TEXT PRIMARY KEY, answer BLOB, failure TEXT NOT NULL) STRICT;
CREATE TABLE submissions (
    sequence INTEGER PRIMARY KEY, candidate_id TEXT NOT NULL UNIQUE, tournament_id TEXT NOT NULL,
    request_id TEXT NOT NULL, lease_epoch INTEGER NOT NULL, answer BLOB NOT NULL, verdict INTEGER NOT NULL,
    reason TEXT NOT NULL) STRICT;
CREATE INDEX submissions_by_arrival ON submissions (tournament_id, sequence);
CREATE INDEX submissions_by_verdict ON submissions (tournament_id, verdict);
CREATE TABLE requests (
    method TEXT, request_id TEXT, outcome TEXT NOT NULL, PRIMARY KEY (method, request_id)) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
    sequence INTEGER PRIMARY KEY, tournament_id TEXT NOT NULL, subject TEXT NOT NULL, number INTEGER NOT NULL,
    manifest_digest TEXT NOT NULL, total_steps INTEGER, snapshot BLOB NOT NULL,
    UNIQUE (tournament_id, subject, number)) STRICT;
CREATE INDEX snapshots_by_arrival ON snapshots (tournament_id, sequence);
"""

ADDITIONS = """
CREATE TABLE IF NOT EXISTS held (
    candidate_id TEXT PRIMARY KEY, tournament_id TEXT NOT NULL, position INTEGER NOT NULL UNIQUE,
    candidate BLOB NOT NULL, request BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS held_by_arrival ON held (tournament_id, position);
CREATE TABLE IF NOT EXISTS refusals (
    tournament_id TEXT, number INTEGER, manifest_digest TEXT NOT NULL, refusal BLOB NOT NULL,
    PRIMARY KEY (tournament_id, number), UNIQUE (tournament_id, manifest_digest)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deletions (tournament_id TEXT PRIMARY KEY, agents INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS owners (
    tournament_id TEXT PRIMARY KEY, owner TEXT NOT NULL, namespace TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS generation_marks (mark INTEGER PRIMARY KEY, position INTEGER NOT NULL) STRICT;
"""

DATABASE_FORMAT = Format(owner="leaderboard", application_id=0x706F6C62, version=4, schema=SCHEMA, additions=ADDITIONS)
"""The application id spells "polb"."""
