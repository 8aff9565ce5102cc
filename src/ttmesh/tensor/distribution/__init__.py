"""How one tensor becomes values on every chip and back: mappers, composers, presence, allocation."""
