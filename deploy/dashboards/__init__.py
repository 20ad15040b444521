"""The Grafana dashboards: their tables, and the generator of their JSON."""
