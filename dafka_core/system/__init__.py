"""The operating system: durable files, forked children, threads."""
