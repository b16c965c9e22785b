"""What several examples share: generated data, a start without the Hub, tables."""
