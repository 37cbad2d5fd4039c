-- user_version 1000
CREATE TABLE executions (
    arn TEXT PRIMARY KEY, pipeline TEXT NOT NULL, owner TEXT NOT NULL, status TEXT NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX executions_by_owner ON executions (owner, status);
CREATE INDEX executions_by_pipeline ON executions (pipeline);
CREATE TABLE pipelines (
    arn TEXT PRIMARY KEY, region TEXT NOT NULL, document TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE smlaunch_writes (n INTEGER NOT NULL);
CREATE TABLE steps (
    execution TEXT NOT NULL, name TEXT NOT NULL, pipeline TEXT NOT NULL, status TEXT NOT NULL,
    cache_key TEXT, ended REAL, document TEXT NOT NULL,
    PRIMARY KEY (execution, name)
) WITHOUT ROWID;
CREATE INDEX steps_by_cache_key ON steps (pipeline, name, cache_key, ended);
