"""Test double of Isaac Lab."""
