"""What reading and writing need of the cluster: its stores, connections, acknowledgements."""
