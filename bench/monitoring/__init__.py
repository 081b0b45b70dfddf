"""The Grafana dashboard, and a run of its queries and alerts by a real Prometheus."""
