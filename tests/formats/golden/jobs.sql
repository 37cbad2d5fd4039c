-- user_version 1000
CREATE TABLE jobs (
    kind TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    arn TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    created REAL NOT NULL, modified REAL NOT NULL, status TEXT NOT NULL,
    request TEXT NOT NULL, state TEXT NOT NULL, result TEXT NOT NULL, tags TEXT NOT NULL,
    PRIMARY KEY (kind, region, name)
) WITHOUT ROWID;
CREATE INDEX jobs_by_owner ON jobs (owner, status);
CREATE INDEX jobs_by_time ON jobs (kind, region, created, name);
CREATE TABLE smlaunch_writes (n INTEGER NOT NULL);
