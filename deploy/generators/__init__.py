"""Write the Prometheus rules from one table of judges, objectives and windows."""
