"""The dimensions of a job (data, tensor, pipeline, expert, context parallelism) and each rank's place in them."""
