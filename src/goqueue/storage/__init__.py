"""One append-only log on a disk: files, indexes, segments, recovery, retention, compaction."""
