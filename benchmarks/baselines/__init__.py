"""Published policies, written anew to be measured beside ours on the same fleet."""
