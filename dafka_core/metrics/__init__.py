"""What people see of running nodes: numbers for Prometheus, health, readiness."""
