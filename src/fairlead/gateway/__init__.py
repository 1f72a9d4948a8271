"""One door for all endpoints: a process of its own that reads routes.json and writes demand.json.

What belongs here: HTTP/1.1 as it is on the wire, which replica a request goes to, who may ask, what waits, what is
told.
What never does: deciding how many replicas there are, and any other layer of Fairlead but its errors and specs.
"""
