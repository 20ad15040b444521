"""The application: reads published traces, samples them, has them judged, and exports the verdicts."""
