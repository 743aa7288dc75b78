"""What ``create`` makes shards of: folders, lists, Arrow and Parquet files, MDS."""
