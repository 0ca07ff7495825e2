"""Any Gymnasium environment as a batch: simulator.py is what callers see, lanes.py steps, in processes.py elsewhere."""
