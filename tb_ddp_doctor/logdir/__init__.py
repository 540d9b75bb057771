"""What `discover` is made of: names, heads of files, folders of one job, profiler cycles."""
