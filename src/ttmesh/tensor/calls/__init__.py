"""How a call becomes work: arguments, plans, lane functions, L1 checks."""
