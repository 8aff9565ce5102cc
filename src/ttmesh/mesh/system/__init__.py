"""The system that meshes are taken from: chip order, coordinator, links."""
