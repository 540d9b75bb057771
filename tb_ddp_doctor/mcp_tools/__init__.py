"""What an agent may ask of a log directory: read-only tools with short typed answers, served by `ddp-doctor mcp`.

`roots` confines paths, `wrapping` marks what was read from files, `paging` keeps answers short, `questions` and
`answers` are the types of what is asked and said, `toolbox` answers, and `server` alone knows the package `mcp`.
"""
