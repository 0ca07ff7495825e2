"""Views of tournaments, pods and candidates: tables, live tables, plain lines and JSON."""
