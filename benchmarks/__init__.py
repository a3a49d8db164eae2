"""Cases are data, contestants are adapters of one method, one runner measures them side by side, suite by suite."""
