package bmc

// Hooks tell the simulated machine what its BMC did to it. Each is called outside the server's lock, in order, from one
// goroutine, so a hook may block and may call the server back. A nil hook is skipped.
type Hooks struct {
	// PowerOn: the machine has power and begins its POST with this boot choice. A one-time choice is consumed by the call.
	PowerOn func(Boot)
	// PowerOff: the machine has lost power. graceful is true when the OS was asked and obeyed.
	PowerOff func(graceful bool)
	// Shutdown: the OS is asked to shut down. False means that it doesn't hear (hung, or none). Nil obeys.
	Shutdown func() bool
	// Locate: the locator light was set.
	Locate func(on bool)
}

// Boot is what a machine is told to boot.
type Boot struct {
	Target  string // Redfish BootSource: None (boot order), Pxe, UefiHttp, Hdd, Cd, ...
	Mode    string // UEFI or Legacy; "" when the BMC doesn't say
	Once    bool   // one boot only
	HTTPURI string // HttpBootUri for UefiHttp, "" when DHCP gives it
}

// Network says that the machine boots from its network card.
func (b Boot) Network() bool { return b.Target == "Pxe" || b.Target == "UefiHttp" }

// Identity is what makes one server of a profile different from the next. Empty fields keep the tree's own values.
// It replaces the tree's value wherever that appears, so cross references stay right.
type Identity struct {
	Serial, UUID        string
	Manufacturer, Model string
	// MACs replace those of the system's network interfaces, in the collection's order.
	MACs []string
	// GPUs replace those of the tree, in slot order. Fewer than the tree has leaves the rest as they are.
	GPUs []GPU
}

// GPU is one accelerator as the BMC shows it.
type GPU struct {
	Serial, UUID, Model string
	Health              string // OK, Warning, Critical; "" keeps
	State               string // Enabled, Absent, ...; "" keeps
}
