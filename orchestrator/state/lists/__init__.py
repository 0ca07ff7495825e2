"""Lists of tournaments, pods, events and evaluations: fields for filters and orders, and the queries."""
