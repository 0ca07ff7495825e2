"""Shows tournaments, pods and candidates as tables, live tables, plain lines and JSON."""
