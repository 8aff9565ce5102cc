"""Messages and sums between ranks, with deadlines and signs of life; the engines themselves are in fabric/transports."""
