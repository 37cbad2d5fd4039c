-- user_version 1000
CREATE TABLE buckets (name TEXT PRIMARY KEY, created REAL NOT NULL, region TEXT NOT NULL);
CREATE TABLE objects (
    bucket TEXT NOT NULL, key BLOB NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL,
    modified REAL NOT NULL, attributes TEXT NOT NULL, file TEXT NOT NULL, inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE parts (
    upload TEXT NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL,
    modified REAL NOT NULL, checksums TEXT NOT NULL, file TEXT NOT NULL,
    PRIMARY KEY (upload, number)) WITHOUT ROWID;
CREATE TABLE place (inode INTEGER NOT NULL);
CREATE TABLE smlaunch_writes (n INTEGER NOT NULL);
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, created REAL NOT NULL,
    attributes TEXT NOT NULL);
