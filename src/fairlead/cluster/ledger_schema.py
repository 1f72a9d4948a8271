"""The tables of the ledger in the SQL of SQLite, apart from the code that reads and writes them."""

LEDGER_SCHEMA = """
CREATE TABLE IF NOT EXISTS prices (
    node TEXT NOT NULL, from_ms INTEGER NOT NULL, rate INTEGER, source TEXT NOT NULL, PRIMARY KEY (node, from_ms)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holders (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL, run TEXT NOT NULL, team TEXT NOT NULL, model TEXT NOT NULL,
    project TEXT NOT NULL, "user" TEXT NOT NULL,
    UNIQUE (uid, run, team, model, project, "user")
);
CREATE TABLE IF NOT EXISTS usage (
    day INTEGER NOT NULL, node TEXT NOT NULL, holder INTEGER NOT NULL, use TEXT NOT NULL, start_ms INTEGER NOT NULL,
    end_ms INTEGER NOT NULL, share INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS usage_by_day ON usage (day);
CREATE INDEX IF NOT EXISTS usage_by_holder ON usage (holder);
CREATE TABLE IF NOT EXISTS budget_notices (
    team TEXT NOT NULL, month TEXT NOT NULL, percent INTEGER NOT NULL, PRIMARY KEY (team, month, percent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS idle_hours (
    pod TEXT NOT NULL, hour INTEGER NOT NULL, idle_ms INTEGER NOT NULL, PRIMARY KEY (pod, hour)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_days (
    day INTEGER NOT NULL, node TEXT NOT NULL, team TEXT NOT NULL, model TEXT NOT NULL, project TEXT NOT NULL,
    "user" TEXT NOT NULL, use TEXT NOT NULL, unit_ms INTEGER NOT NULL,
    PRIMARY KEY (day, node, team, model, project, "user", use)
) WITHOUT ROWID
"""
