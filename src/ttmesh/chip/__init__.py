"""One chip: what boards exist, how their memory is banked and allocated, what an address holds, number formats."""
