package fleet

import (
	"bytes"
	"slices"
)

// Alike says whether two records of a machine agree in what a workflow is planned from and a person can change: above all the disks.
func (r *Record) Alike(o *Record) bool {
	return slices.Equal(r.DiskSerials, o.DiskSerials) && slices.Equal(r.MACs, o.MACs) && r.UUID == o.UUID && r.Firmware == o.Firmware &&
		r.BMC == o.BMC && bytes.Equal(r.BMCCertificateSHA256, o.BMCCertificateSHA256) && r.Discovered == o.Discovered
}
