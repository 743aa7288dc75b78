"""What batches and samples look like: pictures, statistics of tensors, contact sheets."""
