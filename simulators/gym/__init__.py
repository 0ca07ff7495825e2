"""Steps any Gymnasium environments as a batch: simulator.py has the interface, lanes.py and processes.py step."""
