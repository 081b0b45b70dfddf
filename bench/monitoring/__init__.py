"""The Grafana dashboard, and a run of its queries and of the alerts by a real Prometheus."""
