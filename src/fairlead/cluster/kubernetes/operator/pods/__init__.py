"""Makes the pods of gangs real and tells what became of them."""
