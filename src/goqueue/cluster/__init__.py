"""How nodes become one cluster: a shared metadata log, the controller that writes it, and the nodes that follow it."""
