"""Grafana dashboards as code: one file each, written as JSON by ``python -m deploy.dashboards``."""
