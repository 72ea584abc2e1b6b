"""Files of a log: names, index entries, checkpoint, lineage (leader epoch cache), scan of batches, open files."""
