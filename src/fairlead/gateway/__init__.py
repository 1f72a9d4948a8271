"""The single entry point for all endpoints: a separate process that reads routes.json and writes demand.json.

It covers HTTP/1.1 on the wire, the choice of a replica, access control, queueing and demand reports. It never decides
the number of replicas, and imports no other layer of Fairlead but its errors and specs.
"""
