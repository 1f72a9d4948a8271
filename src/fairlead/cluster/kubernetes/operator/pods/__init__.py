"""Creates the pods of gangs and reports their state."""
