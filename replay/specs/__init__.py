"""What people write: models, hardware, mappings; small, checked once at the door, frozen afterwards."""
