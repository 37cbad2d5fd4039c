-- user_version 1000
CREATE TABLE points (
    series INTEGER NOT NULL, ms INTEGER NOT NULL,
    many REAL NOT NULL, total REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, unit TEXT NOT NULL
);
CREATE INDEX points_by_time ON points (series, ms);
CREATE TABLE series (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, dimensions TEXT NOT NULL,
    UNIQUE (namespace, name, dimensions)
);
CREATE TABLE smlaunch_writes (n INTEGER NOT NULL);
