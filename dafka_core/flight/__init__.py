"""Arrow Flight in front of a store's log: whole blocks in and out (docs/flight.md)."""
