"""Messages and sums between ranks, with deadlines and heartbeats; the engines themselves are in fabric/transports."""
