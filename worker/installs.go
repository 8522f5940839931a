package worker

import (
	"maps"
	"slices"
	"strings"

	"gpupool/activities/install/profiles"
	"gpupool/api/contract"
	"gpupool/schema"
)

// installs is the catalogue of install profiles as the API shows it: api.Installs.
type installs struct {
	profiles profiles.Catalogue
	url      string // of the API
}

func (i installs) Profiles() []contract.InstallProfile {
	out := make([]contract.InstallProfile, 0, len(i.profiles))
	for _, name := range i.profiles.Names() {
		p := i.profiles[name]
		x := contract.InstallProfile{Name: name, Title: p.Title, Help: p.Help, Arch: p.Arch, Source: p.Source, Documents: []string{}, Values: []contract.InstallValue{}}
		for _, d := range p.Documents {
			x.Documents = append(x.Documents, d.Name)
		}
		x.Documents = append(x.Documents, profiles.AgentScript, profiles.AgentConfig)
		for _, key := range slices.Sorted(maps.Keys(p.Values)) {
			v := p.Values[key]
			x.Values = append(x.Values, contract.InstallValue{Name: key, Type: string(v.Type), Help: v.Help, Default: profiles.Text(v.Default), Options: v.Options})
		}
		out = append(out, x)
	}
	return out
}

func (i installs) Check(profile string, values map[string]string) error {
	p, err := i.profiles.Find(profile)
	if err == nil {
		_, err = p.Check(profiles.FromText(values))
	}
	return err
}

// What stands in a preview for what only an armed attempt has.
const (
	previewBase  = "http://BOOT-SERVICE/b/TOKEN"
	previewFiles = "http://BOOT-SERVICE/files"
)

func (i installs) Preview(v schema.Server, profile string, values map[string]string) (contract.InstallPreview, error) {
	p, err := i.profiles.Get(profile, v.Arch)
	if err != nil {
		return contract.InstallPreview{}, err
	}
	all, err := p.Check(profiles.FromText(values))
	if err != nil {
		return contract.InstallPreview{}, err
	}
	mac, _, _ := strings.Cut(v.MACs, ",")
	r, err := p.Render(profiles.Context{Server: v.ID, Name: v.Name, Arch: v.Arch, MAC: mac, Attempt: v.Attempt + 1, Base: previewBase, Files: previewFiles, API: i.url}, profiles.FromText(values))
	out := contract.InstallPreview{Server: v.Name, Profile: p.Name, Values: map[string]string{}, Kernel: r.Kernel, Initrd: slices.Concat([]string{}, r.Initrd), Args: r.Args, Documents: []contract.InstallDocument{}}
	for key, value := range all {
		out.Values[key] = profiles.Text(value)
	}
	for _, d := range r.Documents {
		out.Documents = append(out.Documents, contract.InstallDocument{Name: d.Name, ContentType: d.Type, Body: d.Body})
	}
	return out, err
}
