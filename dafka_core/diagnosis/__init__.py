"""What is wrong with a cluster: facts are gathered within a time limit, and checked."""
