"""Budgets of judge calls: rates that follow them, and reservations."""
