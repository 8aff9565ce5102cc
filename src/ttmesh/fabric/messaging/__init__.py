"""Messages and sums between ranks: deadlines, heartbeats, naming a rank that died; the engines are in fabric/transports."""
